// A module of a vehicle, as far as its memory goes: each cycle it plans around the obstacles that are
// in view. It has a leak, which the guide's chapter on boards hunts.
#include <map>
#include <memory>
#include <unistd.h>
#include <vector>

struct Point {
    double x, y, heading, speed;
};
using Trajectory = std::vector<Point>;

struct Track {
    int id;
    std::vector<Trajectory> predictions;
};

class Tracker {
    std::map<int, std::unique_ptr<Track>> tracks;

    static Trajectory predict(int id) {
        Trajectory trajectory;
        for (int step = 0; step < 40; step++)
            trajectory.push_back({double(id), step * 0.1, 0, 10});
        return trajectory;
    }

public:
    void update(int cycle) {
        // Twenty obstacles are in view; a new one comes every fifth cycle.
        for (int id = cycle / 5; id < cycle / 5 + 20; id++) {
            auto &track = tracks[id];
            if (!track)
                track.reset(new Track{id, {}});
            if (track->predictions.size() < 8)
                track->predictions.push_back(predict(id));
        }
        // What has left the view should go here.
    }
};

static std::vector<Point> plan(int cycle) {
    return std::vector<Point>(2000 + cycle % 500);
}

int main() {
    Tracker tracker;
    for (int cycle = 0;; cycle++) {
        tracker.update(cycle);
        plan(cycle);
        usleep(2000);
    }
}
