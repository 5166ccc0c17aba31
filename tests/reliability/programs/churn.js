// Buffers, compression, hashes, worker threads, child processes: a line for each result.
const { Worker, isMainThread, parentPort, workerData } = require('worker_threads');
const { execFileSync } = require('child_process');
const crypto = require('crypto');
const zlib = require('zlib');

function bytes(seed, length) {
    const buffer = Buffer.allocUnsafe(length);
    for (let i = 0, x = seed; i < length; i++) {
        x = (Math.imul(x, 1103515245) + 12345) >>> 0;
        buffer[i] = x >>> 24;
    }
    return buffer;
}

const sha = (buffer) => crypto.createHash('sha256').update(buffer).digest('hex').slice(0, 16);

function work(seed) {
    const results = [];
    for (let i = 0; i < 20; i++) {
        const buffer = bytes(seed + i, 20000 + 977 * i);
        const packed = zlib.gzipSync(buffer);
        results.push(sha(zlib.gunzipSync(packed)));
    }
    return sha(Buffer.from(results.join()));
}

if (!isMainThread) {
    parentPort.postMessage([workerData, work(workerData)]);
} else {
    console.log(`main: ${work(0)}`);
    const kept = new Map();
    for (let i = 0; i < 200000; i++) {
        kept.set(`key${i % 5000}`, { i, text: 'x'.repeat(i % 50) });
    }
    console.log(`map: ${kept.size}`);
    console.log(`child: ${execFileSync(process.execPath, ['-p', '6 * 7']).toString().trim()}`);
    console.log(`shell: ${execFileSync('sh', ['-c', 'echo ok']).toString().trim()}`);
    let left = 4;
    for (let n = 1; n <= 4; n++) {
        new Worker(__filename, { workerData: n * 1000 }).on('message', ([seed, text]) => {
            console.log(`worker ${seed}: ${text}`);
        }).on('exit', (code) => {
            console.log(`exit ${4 - --left}: ${code}`);
        });
    }
}
