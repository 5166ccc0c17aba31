"""Makes this many functions, one after the other, each with a name, a file, a line and a size of its
own, calls each once, and forgets it. Says at how many addresses code objects were remade."""

import sys


def main(count):
    addresses = set()
    again = 0
    for number in range(count):
        line = number % 50
        text = "\n" * line + f"def made():\n    bytearray(1000 + {number % 5000})\n"
        # A name that differs in the middle alone, as long as the one before.
        text = text.replace("made", f"made_{number:07}_of_many")
        space = {}
        exec(compile(text, f"file_{number % 7}.py", "exec"), space)
        made = space[f"made_{number:07}_of_many"]
        address = id(made.__code__)
        again += address in addresses
        addresses.add(address)
        made()
    print(again, flush=True)


print("started", flush=True)
main(int(sys.stdin.readline()))
sys.stdin.readline()
