"""PostgreSQL: a count of rows, a seed. Prints the sums that pgbench must keep, and digests of large queries."""
import glob
import os
import pwd
import subprocess
import sys
import time

count, seed = int(sys.argv[1]), sys.argv[2]
programs = sorted(glob.glob("/usr/lib/postgresql/*/bin"))[-1]
# The server refuses to run as root, so its folder lies where another user may enter.
folder = os.environ["SHORT_FOLDER"]
os.mkdir(folder)
owner = pwd.getpwnam("postgres")
if os.geteuid() == 0:
    os.chown(folder, owner.pw_uid, owner.pw_gid)


def become_owner():
    if os.geteuid() == 0:
        os.setgid(owner.pw_gid)
        os.setuid(owner.pw_uid)


def options(name, *words):
    return dict(args=[f"{programs}/{name}", *words], preexec_fn=become_owner, cwd=folder, env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"})


def run(name, *words):
    done = subprocess.run(**options(name, *words), capture_output=True, text=True)
    assert done.returncode == 0, (name, done.stderr[-2000:])
    return done.stdout


def ask(*statements):
    return run("psql", "-h", folder, "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", *(w for s in statements for w in ("-c", s)), "postgres")


server = None
try:
    run("initdb", "-D", f"{folder}/data", "--no-sync", "-A", "trust")
    settings = ["-D", f"{folder}/data", "-k", folder, "-c", "listen_addresses=", "-c", "fsync=off", "-c", "shared_buffers=64MB"]
    settings += ["-c", "jit=off", "-c", "max_parallel_workers_per_gather=0", "-c", "work_mem=1GB"]
    server = subprocess.Popen(**options("postgres", *settings), stderr=subprocess.DEVNULL)
    while subprocess.run(**options("pg_isready", "-h", folder, "-q")).returncode != 0:
        assert server.poll() is None, "the server has ended"
        time.sleep(0.05)
    run("pgbench", "-h", folder, "-i", "-q", "-s", "2", "postgres")
    run("pgbench", "-h", folder, "-n", "-c", "4", "-j", "2", "-t", "500", f"--random-seed={seed}", "postgres")
    for table in ["accounts", "tellers", "branches"]:
        print(table, ask(f"SELECT sum({table[0]}balance) FROM pgbench_{table}").strip())
    print("history", ask("SELECT count(*), sum(delta) FROM pgbench_history").strip())
    rows = f"SELECT i, md5((i + {seed})::text) AS word, i % 1000 AS kind FROM generate_series(1, {count}) AS i"
    print("sorted", ask(f"SELECT md5(string_agg(substr(word, 1, 4), '' ORDER BY word)) FROM ({rows}) AS r").strip())
    print("grouped", ask(f"SELECT count(*), sum(c) FROM (SELECT word, count(*) AS c FROM ({rows}) AS r GROUP BY word) AS g").strip())
    joined = f"SELECT sum(a.i * b.kind) FROM ({rows}) AS a JOIN ({rows}) AS b ON a.word = b.word"
    print("joined", ask("SET enable_mergejoin = off", joined).strip())
finally:
    if server is not None:
        server.terminate()
        server.wait()
    subprocess.run(["rm", "-rf", folder], check=True)
