"""http_server.py PORT DIRECTORY: http.server, quiet, on 127.0.0.1."""
import functools
import http.server
import sys


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


port, root = int(sys.argv[1]), sys.argv[2]
handler = functools.partial(Quiet, directory=root)
http.server.ThreadingHTTPServer(("127.0.0.1", port), handler).serve_forever()
