// http.js server PORT | client PORT REQUESTS
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
  const lane = async (first) => {
    for (let n = first; n < Number(count); n += 4) {
      const sent = body(n);
      const res = await fetch(`http://127.0.0.1:${port}/${n}`, { method: 'POST', body: sent });
      const got = Buffer.from(await res.arrayBuffer());
      if (!got.equals(body(n)) || Number(res.headers.get('x-received')) !== sent.length) throw new Error(`answer ${n}`);
    }
  };
  Promise.all([0, 1, 2, 3].map(lane)).then(
    () => { console.log('done', count); process.exit(0); },
    (e) => { console.error(e); process.exit(1); },
  );
}
