"""An HTTP server at the socket named by its argument, a thread for each client. For /lose it
loses an object of 1000 bytes, which no pointer leads to any more."""

import ctypes
import http.server
import json
import socketserver
import sys

kept = {}
malloc = ctypes.CDLL(None).malloc
# The address itself stays nowhere.
malloc.restype = None


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.path == "/lose":
            malloc(1000)
        served = len(kept)
        kept[served] = self.path
        body = json.dumps({"served": served, "rows": list(range(20))}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


class Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True


server = Server(sys.argv[1], Handler)
print("ready", flush=True)
server.serve_forever()
