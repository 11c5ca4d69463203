"""Processes that fork and go on: a size, a seed. Prints a digest for each, and the parent's own."""
import hashlib
import multiprocessing
import sys

import numpy as np

size, seed = int(sys.argv[1]), int(sys.argv[2])
shared = np.random.default_rng(seed).random(size)


def digest(array):
    return hashlib.sha256(array).hexdigest()


def work(number, answers):
    before = digest(shared)
    quarter = size // 4
    shared[number * quarter : (number + 1) * quarter] *= number + 2
    own = np.random.default_rng(seed + number + 1).random(size // 2)
    own.sort()
    answers.put((number, before, digest(shared), digest(own)))


if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    children = [context.Process(target=work, args=(number, answers)) for number in range(4)]
    for child in children:
        child.start()
    shared[::7] = 0.5
    results = sorted(answers.get(timeout=250) for _ in children)
    for child in children:
        child.join()
        assert child.exitcode == 0, child.exitcode
    for result in results:
        print(*result)
    print("parent", digest(shared))
