"""A small TCP sender and receiver: round trips first, then bytes in one direction. Run inside two nodes.

    python probe.py receive ADDRESS              prints its port, then the bytes received and the seconds they took
    python probe.py send ADDRESS PORT BYTES      prints the shortest round trip in seconds

Standard library only and on its own, so that it starts quickly.
"""

import contextlib
import socket
import sys
import time

ROUND_TRIPS = 50
TIMEOUT_S = 30.0


def receive(address: str) -> None:
    with socket.create_server((address, 0)) as server:
        server.settimeout(TIMEOUT_S)
        print(server.getsockname()[1], flush=True)
        connection, _ = server.accept()
    with connection:
        connection.settimeout(TIMEOUT_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(ROUND_TRIPS):
            connection.sendall(connection.recv(1))
        buffer = bytearray(1 << 20)
        # The clock starts with the first bytes, which are not counted: what came before them is not the link's.
        connection.recv_into(buffer)
        start = last = time.perf_counter()
        received = 0
        while count := connection.recv_into(buffer):
            received += count
            last = time.perf_counter()
        print(received, last - start, flush=True)


def send(address: str, port: int, size: int) -> None:
    with socket.create_connection((address, port), timeout=TIMEOUT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        shortest = float("inf")
        for _ in range(ROUND_TRIPS):
            start = time.perf_counter()
            connection.sendall(b"x")
            connection.recv(1)
            shortest = min(shortest, time.perf_counter() - start)
        print(shortest, flush=True)
        block = bytes(1 << 16)
        while size > 0:
            connection.sendall(block[:size])
            size -= len(block)
        connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            connection.recv(1)


if __name__ == "__main__":
    if sys.argv[1] == "receive":
        receive(sys.argv[2])
    else:
        send(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
