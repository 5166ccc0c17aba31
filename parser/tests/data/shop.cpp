// A small program to profile: a shop with books in it.
#include <map>
#include <string>
#include <vector>

struct Book {
    std::string title;
    std::vector<int> ratings;
};

struct Shelf {
    std::map<int, Book *> books;

    __attribute__((always_inline)) inline Book *make(int number) {
        return new Book{std::string(40 + number % 50, 't'), {}};
    }

    __attribute__((noinline)) void add(int number) {
        books[number] = make(number);
    }
};

// A tree of rooms: recursion.
struct Room {
    std::vector<Room *> rooms;

    __attribute__((noinline)) explicit Room(int depth) {
        for (int i = 0; depth > 0 && i < 3; i++)
            rooms.push_back(new Room(depth - 1));
    }
};

__attribute__((noinline)) void rate(Shelf &shelf, int rounds) {
    for (int round = 0; round < rounds; round++)
        for (auto &[number, book] : shelf.books)
            book->ratings.push_back(round);
}

__attribute__((noinline)) int visit(int visitors) {
    int bought = 0;
    for (int i = 0; i < visitors; i++) {
        std::string note(100 + i % 300, 'n');
        bought += int(note.size()) % 3 == 0;
    }
    return bought;
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? std::stoi(argv[1]) : 20;
    Shelf shelf;
    for (int number = 0; number < 400; number++)
        shelf.add(number);
    Room hall(5);
    rate(shelf, rounds);
    return visit(3000) + int(hall.rooms.size()) > 0 ? 0 : 1;
}
