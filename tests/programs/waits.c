// Waits as servers do, each call in a thread of its own, and counts calls that were interrupted:
// epoll_wait, poll, nanosleep, a semaphore, a socket with a timeout. One more thread computes.

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static atomic_int interrupted, over;

static void note(long result) {
    if (result < 0 && errno == EINTR)
        interrupted++;
}

static void *epolls(void *_) {
    int fd = epoll_create1(0);
    struct epoll_event event;
    while (!over)
        note(epoll_wait(fd, &event, 1, 20));
    return _;
}

static void *polls(void *_) {
    while (!over)
        note(poll(NULL, 0, 20));
    return _;
}

static void *sleeps(void *_) {
    struct timespec time = {0, 20000000};
    while (!over)
        note(nanosleep(&time, NULL));
    return _;
}

static void *receives(void *_) {
    int pair[2];
    char byte;
    struct timeval timeout = {0, 20000};
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0)
        return _;
    setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    while (!over)
        note(recv(pair[0], &byte, 1, 0));
    return _;
}

static void *computes(void *_) {
    volatile unsigned x = 1;
    while (!over)
        x = x * 1664525 + 1013904223;
    return _;
}

int main(void) {
    void *(*const work[])(void *) = {epolls, polls, sleeps, receives, computes};
    pthread_t threads[5];
    for (int i = 0; i < 5; i++)
        if (pthread_create(&threads[i], NULL, work[i], NULL) != 0)
            return 1;
    puts("ready");
    fflush(stdout);
    getchar();
    over = 1;
    for (int i = 0; i < 5; i++)
        pthread_join(threads[i], NULL);
    printf("%d interrupted\n", interrupted);
    return 0;
}
