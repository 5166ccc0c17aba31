// The first thread ends, and another one continues: it says `ready`, and when it is told to plant it loses
// ten objects, keeps one in each of a static variable, its stack, and the kernel (an epoll entry and a
// timer's value), and says `planted`. It ends with its input.
#include "first_thread.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

static void *volatile in_data;

static __attribute__((noinline)) void lost_plain(void) {
    for (int i = 0; i < 10; i++) {
        void *volatile block = malloc(100 + i);
        memset(block, 0, 100 + i);
        block = 0;
    }
}

static __attribute__((noinline)) void kept_by_data(void) { in_data = malloc(300); }

static __attribute__((noinline)) void *kept_by_stack(void) { return malloc(400); }

static __attribute__((noinline)) void kept_by_epoll(int epoll) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = malloc(500)};
    epoll_ctl(epoll, EPOLL_CTL_ADD, eventfd(0, 0), &event);
    memset(&event, 0, sizeof event);
}

static __attribute__((noinline)) void kept_by_timer(void) {
    timer_t timer;
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
    event.sigev_value.sival_ptr = malloc(600);
    timer_create(CLOCK_MONOTONIC, &event, &timer);
    memset(&event, 0, sizeof event);
}

static __attribute__((noinline)) void wipe(void) {
    char volatile room[16384];
    memset((char *)room, 0, sizeof room);
}

static void *go_on(void *nothing) {
    char line[64];
    wait_for_first_thread();
    puts("ready"), fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) return nothing;
    lost_plain();
    kept_by_data();
    void *volatile in_stack = kept_by_stack();
    kept_by_epoll(epoll_create1(0));
    kept_by_timer();
    wipe();
    puts("planted"), fflush(stdout);
    while (fgets(line, sizeof line, stdin))
        ;
    return in_stack ? nothing : in_data;
}

int main(void) {
    pthread_t thread;
    pthread_create(&thread, 0, go_on, 0);
    pthread_exit(0);
}
