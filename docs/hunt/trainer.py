"""Trains forever on batches that it parses; remembers more of each than it should."""
import json
import time


class History:
    def __init__(self):
        self.rounds = []

    def remember(self, loss, batch):
        self.rounds.append({"loss": loss, "rows": [dict(row) for row in batch]})


def load(number):
    text = json.dumps([{"row": row, "batch": number} for row in range(200)])
    return json.loads(text)


def train(batch):
    return sum(row["row"] for row in batch) / len(batch)


history = History()
number = 0
while True:
    number += 1
    batch = load(number)
    history.remember(train(batch), batch)
    time.sleep(0.01)
