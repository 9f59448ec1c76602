"""http_client.py URL SHA256 TIMES: fetches with urllib, pausing half-way, the first time until there is a line at standard
input, and compares."""
import hashlib
import sys
import time
import urllib.request

url, want, times = sys.argv[1], sys.argv[2], int(sys.argv[3])
for turn in range(times):
    digest, size = hashlib.sha256(), 0
    with urllib.request.urlopen(url, timeout=60) as answer:
        total = int(answer.headers["Content-Length"])
        paused = False
        while block := answer.read(65536):
            digest.update(block)
            size += len(block)
            # A long-lived transfer: the connection can be looked at while it runs.
            if not paused and size * 2 > total:
                paused = True
                if turn == 0:
                    print("half", flush=True)
                    sys.stdin.readline()
                else:
                    time.sleep(0.4)
    if size != total or digest.hexdigest() != want:
        sys.exit(f"got {size} of {total} bytes, sha256 {digest.hexdigest()}")
print("done", times)
