"""Trains a small model, epoch after epoch, as a training script does: processes that are forked
for each epoch make the batches, threads prepare them, and what a step computes is dropped after
it. Integers only, so that the same epoch always has the same checksum.

`trainer.py plain` prints the checksums of all kinds of epochs. `trainer.py LOG` trains until its
input ends, and writes a line "EPOCH CHECKSUM" for each; it obeys "hold COUNT SIZE" and "drop"."""

import concurrent.futures
import json
import multiprocessing
import os
import random
import sys
import threading
import zlib

import numpy

KINDS = 4
LOADERS = 2
BATCHES = 6
ROWS, COLUMNS, OUTPUTS = 256, 64, 32
# Seconds between two epochs: there are other programs on the machine.
REST = 0.5

fork = multiprocessing.get_context("fork")


def make_batches(seed, pipe):
    """A loader: records in a text, compressed."""
    source = random.Random(seed)
    for _ in range(BATCHES):
        records = [{"label": source.randrange(OUTPUTS), "values": [source.randrange(256) for _ in range(COLUMNS)]}
                   for _ in range(ROWS)]
        pipe.send(zlib.compress(json.dumps(records).encode(), 1))
    pipe.close()


def prepare(batch):
    """A thread's part: what a step can compute with."""
    records = json.loads(zlib.decompress(batch))
    values = numpy.array([record["values"] for record in records], dtype=numpy.int64)
    labels = numpy.zeros((len(records), OUTPUTS), dtype=numpy.int64)
    labels[numpy.arange(len(records)), [record["label"] for record in records]] = 1 << 16
    return values, labels


def step(weights, values, labels):
    """New weights, and how wrong the old ones were."""
    outputs = values @ weights
    error = outputs - labels
    gradient = values.T @ error
    return weights - (gradient >> 22), int(numpy.abs(error).sum())


def batches_of(loaders):
    for at in range(BATCHES * LOADERS):
        yield loaders[at % LOADERS][1].recv()


def train(kind, threads):
    """An epoch from the beginning; gives its checksum."""
    loaders = []
    for number in range(LOADERS):
        receiver, sender = fork.Pipe(duplex=False)
        loaders.append((fork.Process(target=make_batches, args=(kind * LOADERS + number, sender)), receiver))
        loaders[-1][0].start()
        sender.close()
    weights = numpy.full((COLUMNS, OUTPUTS), 7, dtype=numpy.int64)
    history = []
    for at, (values, labels) in enumerate(threads.map(prepare, batches_of(loaders))):
        weights, error = step(weights, values, labels)
        history.append({"step": at, "error": error, "norm": int(numpy.abs(weights).sum())})
    for process, receiver in loaders:
        process.join()
        receiver.close()
        if process.exitcode:
            raise RuntimeError(f"a loader's exit code is {process.exitcode}")
        process.close()
    return zlib.crc32(json.dumps(history).encode(), zlib.crc32(weights.tobytes()))


def train_on(log, stop):
    with concurrent.futures.ThreadPoolExecutor(3) as threads, open(log, "w") as file:
        epoch = 0
        while not stop.wait(REST):
            print(epoch, train(epoch % KINDS, threads), file=file, flush=True)
            epoch += 1


def hold_known_bytes(held, size):
    """Allocates nothing that stays but these objects.

    Not by `bytes(size)`: a call makes a tuple of its arguments, which the interpreter keeps for the
    next one."""
    for at in range(len(held)):
        held[at] = b"x" * size


def obey(lines):
    held = []
    print("ready", flush=True)
    for line in lines:
        word, *numbers = line.split()
        held = []
        if word == "hold":
            count, size = map(int, numbers)
            held = [None] * count
            hold_known_bytes(held, size)
            print(sum(map(sys.getsizeof, held)))
        print("ok", flush=True)


def end_at_once(failure):
    """A thread that fails ends the program."""
    sys.__excepthook__(failure.exc_type, failure.exc_value, failure.exc_traceback)
    os._exit(1)


def main():
    threading.excepthook = end_at_once
    if sys.argv[1] == "plain":
        with concurrent.futures.ThreadPoolExecutor(3) as threads:
            for kind in range(KINDS):
                print(train(kind, threads))
        return
    stop = threading.Event()
    trainer = threading.Thread(target=train_on, args=(sys.argv[1], stop))
    trainer.start()
    # Not by `sys.stdin`, whose lock a child would wait for that is forked during a read.
    with open(0, closefd=False) as commands:
        obey(commands)
    stop.set()
    trainer.join()


if __name__ == "__main__":
    main()
