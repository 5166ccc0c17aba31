// Much for a compiler to chew on; with SMALL, a little.
#ifdef SMALL
#include <string>
int main(int argc, char **argv) { return std::string(argv[argc - 1]).size() > 3; }
#else
#include <algorithm>
#include <functional>
#include <iostream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <unordered_map>
#include <variant>
#include <vector>

template <int N> struct Row {
    using Key = std::tuple<int, std::string, std::integral_constant<int, N>>;
    std::map<std::string, std::vector<std::pair<int, std::string>>> index;
    using Value = std::variant<int, double, std::string>;
    std::unordered_map<std::string, Value> values;
    std::set<std::pair<int, int>> seen;

    std::string fill(const std::vector<std::string> &words) {
        for (size_t i = 0; i < words.size(); i++) {
            index[words[i]].emplace_back(int(i) + N, words[i] + std::to_string(N));
            values.emplace(words[i], i % 2 ? Value(double(i)) : Value(words[i]));
            seen.emplace(int(i) * N, int(words[i].size()));
        }
        std::vector<std::string> keys;
        for (auto &[key, list] : index) {
            std::sort(list.begin(), list.end(),
                      [](auto &a, auto &b) { return a.second > b.second; });
            keys.push_back(key);
        }
        std::ostringstream out;
        std::transform(keys.begin(), keys.end(), std::ostream_iterator<std::string>(out, " "),
                       [](auto &key) { return key + "!"; });
        return out.str();
    }
};

template <int N> std::string all(const std::vector<std::string> &words) {
    std::string rest;
    if constexpr (N > 0) rest = all<N - 1>(words);
    return rest + Row<N>().fill(words);
}

int main(int argc, char **argv) {
    std::cout << all<2>({argv, argv + argc}) << '\n';
}
#endif
