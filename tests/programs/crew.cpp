// Threads with names, each of which allocates known numbers of objects of known sizes.

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <pthread.h>
#include <thread>
#include <time.h>
#include <vector>

static std::mutex lock;
static std::condition_variable changed;
static int done = 0;
static bool leave = false;

__attribute__((noinline)) static void keep(int count, size_t bytes) {
    for (int i = 0; i < count; i++) {
        void *volatile object = malloc(bytes);
        (void)object;
    }
}

// Freed at once.
__attribute__((noinline)) static void churn(int count, size_t bytes) {
    for (int i = 0; i < count; i++) {
        void *volatile object = malloc(bytes);
        free(object);
    }
}

// Freed after more time than counts as short.
__attribute__((noinline)) static void hold(int count, size_t bytes) {
    std::vector<void *> objects(count);
    for (void *&object : objects)
        object = malloc(bytes);
    timespec pause = {0, 50000000};
    nanosleep(&pause, nullptr);
    for (void *object : objects)
        free(object);
}

static void finish() {
    std::unique_lock<std::mutex> held(lock);
    done++;
    changed.notify_all();
    changed.wait(held, [] { return leave; });
}

static void load(int count) {
    pthread_setname_np(pthread_self(), "loader");
    keep(count, 77);
    churn(1000, 131);
    finish();
}

static void work() {
    pthread_setname_np(pthread_self(), "worker \x1b[31m");
    keep(50, 77);
    keep(10, 5001);
    hold(20, 333);
    finish();
}

int main() {
    char line[64];
    puts("ready");
    fflush(stdout);
    std::vector<std::thread> crew;
    while (fgets(line, sizeof line, stdin)) {
        if (!strcmp(line, "go\n")) {
            keep(7, 77);
            crew.emplace_back(load, 100);
            crew.emplace_back(load, 200);
            crew.emplace_back(work);
            std::unique_lock<std::mutex> held(lock);
            changed.wait(held, [] { return done == 3; });
        } else if (!strcmp(line, "leave\n")) {
            {
                std::unique_lock<std::mutex> held(lock);
                leave = true;
                changed.notify_all();
            }
            for (std::thread &member : crew)
                member.join();
        }
        puts("done");
        fflush(stdout);
    }
}
