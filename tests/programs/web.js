// An HTTP server at the socket named by its argument, which keeps the last 1000 of its own objects.
const http = require('http');

const kept = new Map();
let served = 0;

http.createServer((request, response) => {
    served += 1;
    kept.set(served % 1000, { served, body: Buffer.alloc(200), text: 'x'.repeat(served % 50) });
    response.end(JSON.stringify({ served, rows: [...Array(20).keys()] }));
}).listen(process.argv[2], () => console.log('ready'));
