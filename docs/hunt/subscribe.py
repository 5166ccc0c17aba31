#!/usr/bin/env python3
"""Clients of mini-redis that each wait for an answer on a channel of their own, and leave.

    mini-redis-server --port PORT
    subscribe.py PORT COUNT [PER_SECOND]
"""
import socket
import sys
import time


def wait_for_answer(port, number):
    channel = b"answer-%d" % number
    request = b"*2\r\n$9\r\nsubscribe\r\n$%d\r\n%s\r\n" % (len(channel), channel)
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(request)
        client.recv(4096)


port, count = int(sys.argv[1]), int(sys.argv[2])
pause = 1 / float(sys.argv[3]) if len(sys.argv) > 3 else 0
for number in range(count):
    wait_for_answer(port, number)
    time.sleep(pause)
