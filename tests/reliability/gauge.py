"""Whether something that is measured over and over stays as it is."""


class Gauge:
    """Values of one kind, read at regular times. `share` and `slack` are how much they may grow
    over the second half of the run."""

    def __init__(self, name, unit, share, slack):
        self.name, self.unit, self.share, self.slack = name, unit, share, slack
        self.values = []

    def note(self, value):
        self.values.append(value)

    def verdict(self):
        """A line of the report, and whether it grew. The first half is warm-up: what grows on
        and on still does in the second."""
        values = self.values[len(self.values) // 2:]
        if len(values) < 2:
            return f"{self.name}: measured {len(self.values)} times: NOT ENOUGH", True
        early, late = fitted_ends(values)
        grew = late > early * (1 + self.share) + self.slack
        unit = f" {self.unit}" if self.unit else ""
        return (f"{self.name}: {early:.0f} → {late:.0f}{unit} over the second half, at most "
                f"{max(self.values)}: {'GREW' if grew else 'flat'}"), grew


def fitted_ends(values):
    """Both ends of the straight line that fits the values best, by least squares."""
    middle = (len(values) - 1) / 2
    mean = sum(values) / len(values)
    slope = (sum((at - middle) * value for at, value in enumerate(values))
             / sum((at - middle) ** 2 for at in range(len(values))))
    return mean - slope * middle, mean + slope * middle


def memory(name):
    return Gauge(f"{name}'s resident memory", "KiB", 0.05, 3000)


def files(name, clients=0):
    """Descriptors of a process; so many of them may be connections of clients that come and go."""
    return Gauge(f"{name}'s descriptors", "", 0, 4 + 2 * clients)


def shared(children=0):
    """What segments take, those of so many children that come and go among them."""
    return Gauge("shared memory", "bytes", 0.05, (4 << 20) + children * (256 << 10))


def report(gauges):
    """Prints how each did; gives whether all stayed."""
    verdicts = [gauge.verdict() for gauge in gauges]
    for line, _ in verdicts:
        print(line)
    return not any(grew for _, grew in verdicts)
