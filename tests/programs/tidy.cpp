// Fills a map with 20 MB in a thread and a vector in main, and frees both before it ends.
#include <map>
#include <string>
#include <thread>
#include <vector>

struct Cache {
    std::map<int, std::string> entries;

    __attribute__((noinline)) void fill(int count)
    {
        for (int i = 0; i < count; i++) entries[i] = std::string(500 + i % 100, 'x');
    }
};

int main()
{
    Cache cache;
    std::thread filler([&] { cache.fill(40000); });
    filler.join();
    std::vector<int> numbers;
    for (int i = 0; i < 1000000; i++) numbers.push_back(i);
    return numbers.size() != 1000000;
}
