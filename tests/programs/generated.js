// Calls the allocator from compiled, optimised and interpreted functions, and through functions that
// call back: for as many rounds as its argument says.
'use strict';
const zlib = require('zlib');

function buffers(count) {
    let bytes = 0;
    for (let i = 0; i < count; i += 1) bytes += Buffer.alloc(5000 + i).length;
    return bytes;
}

function packed(text) {
    return zlib.deflateSync(text, { level: 1 }).length;
}

function deep(levels, text) {
    return levels === 0 ? packed(text) : deep(levels - 1, text) + 1;
}

function calledBack(texts) {
    const lengths = texts.map((text) => deep(5, text)).sort((a, b) => a - b);
    return 'a-b-c'.replace(/[abc]/g, (letter) => String(buffers(3)) + letter).length + lengths[0];
}

function parsed(text) {
    const all = JSON.parse(text, (key, value) => value);
    return new Intl.NumberFormat('en').format(all.length).length;
}

async function awaited(text) {
    await null;
    return deep(30, text);
}

async function main(rounds) {
    const texts = Array.from({ length: 20 }, (_, i) => `text ${i} `.repeat(50 + i));
    const json = JSON.stringify(Array.from({ length: 100 }, (_, i) => ({ i, name: `n${i}` })));
    let sum = 0;
    for (let round = 0; round < rounds; round += 1) {
        sum += calledBack(texts) + parsed(json) + buffers(20) + await awaited(texts[round % 20]);
    }
    console.log(sum > 0 ? 'done' : 'nothing');
}

main(Number(process.argv[2]));
