// A program that writes the two profiles which tcmalloc makes by itself: what it has sampled
// of the heap, and where it asked the system for more. Linked with it, and run with
// TCMALLOC_SAMPLE_PARAMETER; its arguments are the files for the one, the other, and the
// other as it was half way.

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

// What this program needs of <gperftools/malloc_extension.h>.
class MallocExtension {
public:
    static MallocExtension *instance();
    void GetHeapSample(std::string *text);
    void GetHeapGrowthStacks(std::string *text);
};

using Piece = std::unique_ptr<char[]>;
using Pieces = std::vector<Piece>;

static void small(Pieces &to, int count) {
    for (int i = 0; i < count; i++)
        to.push_back(Piece(new char[40 + i % 500]));
}

static void middle(Pieces &to, int count) {
    for (int i = 0; i < count; i++)
        to.push_back(Piece(new char[9000]));
    small(to, count * 20);
}

static void large(Pieces &to, int count) {
    if (count == 0)
        return;
    to.push_back(Piece(new char[3 << 20]));
    large(to, count - 1);
}

static void morning(Pieces &to) {
    large(to, 3);
    middle(to, 200);
}

static void evening(Pieces &to) {
    middle(to, 400);
    small(to, 40000);
    large(to, 2);
}

// Room for what the reports need: where they had to ask the system for more, that would stand in
// the next report, by chance, as a function of tcmalloc's that viewers name differently.
static void room(Pieces &in) {
    in.push_back(Piece(new char[8 << 20]));
    in.pop_back();
}

static void write(const char *path, const std::string &text) {
    FILE *file = fopen(path, "w");
    if (!file || fwrite(text.data(), 1, text.size(), file) != text.size() || fclose(file))
        perror(path);
}

int main(int, char **paths) {
    Pieces pieces;
    std::string first, heap, growth;
    morning(pieces);
    room(pieces);
    MallocExtension::instance()->GetHeapGrowthStacks(&first);
    evening(pieces);
    room(pieces);
    MallocExtension::instance()->GetHeapSample(&heap);
    MallocExtension::instance()->GetHeapGrowthStacks(&growth);
    write(paths[1], heap);
    write(paths[2], growth);
    write(paths[3], first);
}
