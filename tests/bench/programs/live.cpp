// Builds large C++ containers and drops them.
//
//   live ELEMENTS
//
// ELEMENTS is for each of five containers; half of each is dropped in random order before
// the rest goes as a whole.
#include <cstdint>
#include <cstdlib>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace {

uint64_t state = 88172645463325252u;

uint64_t next() {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

struct Shape {
    virtual ~Shape() = default;
    double at[3] = {};
};
struct Circle : Shape {
    double radius = 1;
};
struct Named : Shape {
    std::string name = std::string(20 + next() % 40, 'x');
};

__attribute__((noinline)) size_t tree(long n) {
    std::map<uint64_t, std::string> map;
    for (long i = 0; i < n; i++) map.emplace(next() % (2 * n), "a value that is not short");
    for (long i = 0; i < n; i++) map.erase(next() % (2 * n));
    return map.size();
}

__attribute__((noinline)) size_t table(long n) {
    std::unordered_map<uint64_t, std::vector<int>> map;
    for (long i = 0; i < n; i++) map[next() % (2 * n)].push_back(int(i));
    for (long i = 0; i < n; i++) map.erase(next() % (2 * n));
    return map.size();
}

__attribute__((noinline)) size_t strings(long n) {
    std::vector<std::string> all;
    for (long i = 0; i < n; i++) all.emplace_back(16 + next() % 100, 'y');
    for (long i = 0; i < n / 2; i++) all[next() % n] = std::string();
    return all.size();
}

__attribute__((noinline)) size_t chain(long n) {
    std::list<std::pair<uint64_t, uint64_t>> list;
    for (long i = 0; i < n; i++) list.emplace_back(i, next());
    list.remove_if([](const auto &entry) { return entry.second & 1; });
    return list.size();
}

__attribute__((noinline)) size_t objects(long n) {
    std::vector<std::unique_ptr<Shape>> all;
    for (long i = 0; i < n; i++)
        if (next() & 1)
            all.push_back(std::make_unique<Circle>());
        else
            all.push_back(std::make_unique<Named>());
    for (long i = 0; i < n / 2; i++) all[next() % n].reset();
    return all.size();
}

}  // namespace

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    long n = atol(argv[1]);
    return tree(n) + table(n) + strings(n) + chain(n) + objects(n) == 0;
}
