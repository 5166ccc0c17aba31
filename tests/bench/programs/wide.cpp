// A program with much debug information, thousands of stacks that allocate, and much of it kept:
// containers of types of their own, a file of PER_PART types for each PART, and one without.
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#ifndef PER_PART
#define PER_PART 26
#endif

using Words = std::vector<std::string>;

template <int N> struct Key {
    std::string text;
    long number;
    bool operator<(const Key &other) const { return text < other.text; }
    bool operator==(const Key &other) const { return text == other.text; }
};

template <int N> struct Hash {
    size_t operator()(const Key<N> &key) const { return std::hash<std::string>()(key.text) + N; }
};

template <int N> struct Shelf {
    using Value = std::variant<Key<N>, double, std::vector<Key<N>>>;
    std::map<Key<N>, std::vector<std::pair<Key<N>, std::string>>> index;
    std::unordered_map<Key<N>, Value, Hash<N>> values;
    std::set<std::pair<Key<N>, int>> seen;
    std::vector<std::shared_ptr<Key<N>>> shared;
    std::vector<std::function<size_t(const Key<N> &)>> later;

    void fill(const Words &words) {
        for (size_t i = 0; i < words.size(); i++) {
            Key<N> key{words[i] + std::string(40, 'k'), long(i)};
            index[key].emplace_back(key, words[i] + std::to_string(N));
            values.emplace(key, i % 2 ? Value(std::vector<Key<N>>(3, key)) : Value(key));
            seen.emplace(key, int(i) * N);
            shared.push_back(std::make_shared<Key<N>>(key));
            later.push_back([key](const Key<N> &other) { return key.text.size() + other.number; });
        }
        for (auto &[key, list] : index)
            std::stable_sort(list.begin(), list.end(),
                             [](auto &a, auto &b) { return a.second > b.second; });
    }
};

// Each type's shelf is filled from as many frames further down as there are types before it.
template <int N> __attribute__((noinline)) size_t all(const Words &words, int most) {
    // Never destroyed: what it holds is in use when the program ends.
    static Shelf<N> &shelf = *new Shelf<N>;
    shelf.fill(Words(words.begin(), words.begin() + words.size() / 2));
    shelf.fill(Words(words.begin() + words.size() / 2, words.end()));
    size_t kept = shelf.index.size() + shelf.later.size();
    if constexpr (N % PER_PART > 0)
        if (most > 0) kept += all<N - 1>(words, most - 1);
    return kept;
}

#ifdef PART
#define NAME_(part) fill_part_##part
#define NAME(part) NAME_(part)
size_t NAME(PART)(const Words &words) { return all<PART * PER_PART + PER_PART - 1>(words, PER_PART); }
#else
#define EACH(use) use(0) use(1) use(2) use(3) use(4) use(5)
#define DECLARE(part) size_t fill_part_##part(const Words &words);
#define CALL(part) kept += fill_part_##part(words);
EACH(DECLARE)
int main() {
    Words words;
    for (int i = 0; i < 30; i++) words.push_back("word" + std::to_string(i * 7919 % 1000));
    size_t kept = 0;
    EACH(CALL)
    return kept > 0 ? 0 : 1;
}
#endif
