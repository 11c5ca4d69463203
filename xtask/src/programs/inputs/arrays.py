"""Arrays: `sort`, `matmul`, `fft` or `boolean`, a size, a seed. Prints digests of all results."""
import hashlib
import os
import sys

os.environ["OPENBLAS_NUM_THREADS"] = "2"
import numpy as np


def digest(name, array):
    print(name, array.shape, hashlib.sha256(np.ascontiguousarray(array)).hexdigest())


def sort(size, random):
    numbers = random.random(size)
    digest("unsorted", numbers)
    numbers.sort()
    digest("sorted", numbers)
    assert (np.diff(numbers) >= 0).all()


def matmul(size, random):
    left, right = random.random((size, size)), random.random((size, size))
    product = left @ right
    # A library may add in another order, so the product is rounded.
    digest("product", np.round(product, 3))
    digest("left", left)
    digest("right", right)


def fft(size, random):
    signal = random.random(size)
    spectrum = np.fft.fft(signal)
    digest("spectrum", spectrum)
    back = np.fft.ifft(spectrum).real
    digest("back", back)
    assert np.allclose(signal, back)


def boolean(size, random):
    numbers, others = random.random(size), random.random(size)
    high = numbers > 0.5
    chosen = numbers[high & (others < 0.9)]
    digest("chosen", chosen)
    numbers[~high] = 0.0
    digest("zeroed", numbers)
    digest("larger", np.where(numbers > others, numbers, others))


globals()[sys.argv[1]](int(sys.argv[2]), np.random.default_rng(int(sys.argv[3])))
