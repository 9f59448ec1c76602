// http.js server PORT | client PORT REQUESTS
// Behind so many a client goes on, more slowly, until there is a line, or the end, at standard input.
'use strict';
const http = require('http');
const [, , role, port, count] = process.argv;

const body = (n) => Buffer.alloc((n * 7919) % 200000 + 1, String(n));

if (role === 'server') {
  http.createServer((req, res) => {
    const parts = [];
    req.on('data', (p) => parts.push(p));
    req.on('end', () => {
      const sent = Buffer.concat(parts);
      res.setHeader('x-received', sent.length);
      res.end(body(Number(req.url.slice(1))));
    });
  }).listen(Number(port), '127.0.0.1');
} else {
  let over = false;
  let left = 4;
  process.stdin.on('data', () => { over = true; }).on('end', () => { over = true; });
  const ask = async (n) => {
    const sent = body(n);
    const res = await fetch(`http://127.0.0.1:${port}/${n}`, { method: 'POST', body: sent });
    const got = Buffer.from(await res.arrayBuffer());
    if (!got.equals(body(n)) || Number(res.headers.get('x-received')) !== sent.length) throw new Error(`answer ${n}`);
  };
  const lane = async (first) => {
    let n = first;
    for (; n < Number(count); n += 4) await ask(n);
    left -= 1;
    if (left === 0) console.log('done', count);
    for (; left > 0 || !over; n += 4) {
      await ask(n);
      await new Promise((later) => setTimeout(later, 10));
    }
  };
  Promise.all([0, 1, 2, 3].map(lane)).then(
    () => process.exit(0),
    (e) => { console.error(e); process.exit(1); },
  );
}
