"""A dict of strings: a size, a seed. Prints a sum over look-ups of all keys."""
import sys

size, seed = int(sys.argv[1]), int(sys.argv[2])
table = {}
for number in range(size):
    table[f"key-{number * 2654435761 % 4294967296:010d}"] = f"value-{number + seed}"
total = 0
for number in range(size):
    value = table[f"key-{number * 2654435761 % 4294967296:010d}"]
    assert value == f"value-{number + seed}", (number, value)
    total += len(value)
print(len(table), total)
