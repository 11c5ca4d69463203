"""Redis: a count of keys, a seed. Prints digests before and after a save, and of a server that loaded the dump."""
import os
import random
import socket
import subprocess
import sys
import time

count, seed = int(sys.argv[1]), int(sys.argv[2])
folder = os.getcwd()


class Server:
    def __init__(self, name):
        # A path of a socket may have 107 bytes, so the path is relative.
        self.socket = f"{name}.sock"
        options = ["--port", "0", "--unixsocket", self.socket, "--dir", folder, "--save", "", "--dbfilename", "dump.rdb"]
        options += ["--enable-debug-command", "yes"]
        self.process = subprocess.Popen(["redis-server", *options], stdout=subprocess.DEVNULL)
        while True:
            assert self.process.poll() is None, "the server has ended"
            try:
                self.connection = socket.socket(socket.AF_UNIX)
                self.connection.connect(self.socket)
                self.file = self.connection.makefile("rwb")
                if self.ask("PING") == "PONG":
                    return
            except OSError:
                pass
            time.sleep(0.05)

    def send(self, *words):
        words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        self.file.write(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))

    def answer(self):
        self.file.flush()
        line = self.file.readline().decode().rstrip()
        if line.startswith("-LOADING"):
            raise OSError(line)
        assert line and line[0] in "+:$", line
        if line[0] == "$":
            length = int(line[1:])
            return None if length < 0 else self.file.read(length + 2)[:-2].decode()
        return line[1:]

    def ask(self, *words):
        self.send(*words)
        return self.answer()

    def fill(self, generation):
        source = random.Random(seed + generation)
        pending = 0
        for number in range(count):
            if generation and number % 5:
                continue
            if number % 10 == 0:
                self.send("HSET", f"hash:{number}", "a", source.random(), "b", number + generation)
            else:
                self.send("SET", f"key:{number}", f"{generation}-{source.random()}-{number}" * 3)
            pending += 1
            if pending == 1000:
                self.drain(pending)
                pending = 0
        self.drain(pending)

    def drain(self, pending):
        self.file.flush()
        for _ in range(pending):
            self.answer()

    def end(self):
        self.send("SHUTDOWN", "NOSAVE")
        self.file.flush()
        assert self.process.wait() == 0, self.process.returncode


server = Server("first")
server.fill(0)
print("keys", server.ask("DBSIZE"))


def digest(name):
    options = ["redis-cli", "-s", name, "DEBUG", "DIGEST"]
    return subprocess.run(options, check=True, capture_output=True, text=True).stdout.strip()


print("digest", digest("first.sock"))
assert server.ask("BGSAVE").startswith("Background")
server.fill(1)
while "rdb_bgsave_in_progress:1" in server.ask("INFO", "persistence"):
    time.sleep(0.05)
assert "rdb_last_bgsave_status:ok" in server.ask("INFO", "persistence")
print("digest of what was written meanwhile", digest("first.sock"))
server.end()
second = Server("second")
print("digest of the dump", digest("second.sock"))
second.end()
