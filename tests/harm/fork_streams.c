// guards: fork while threads allocate under streams' locks, and one flushes all streams (glibc bug 19431)
// seconds: 180
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { READERS = 4, FORKS = 150, LINE = 50000 };

static char name[] = "/tmp/streams.XXXXXX";
static volatile int stop;

static int read_line(FILE *file)
{
    char *line = NULL;
    size_t room = 0;
    rewind(file);
    ssize_t length = getline(&line, &room, file);
    free(line);
    return length == LINE;
}

static void *read_lines(void *argument)
{
    FILE *file = fopen(name, "r");
    // The C library's locks are not fair: without a pause, others wait for long.
    while (!stop) {
        read_line(file);
        usleep(100);
    }
    fclose(file);
    return argument;
}

static void *flush(void *argument)
{
    while (!stop) {
        fflush(NULL);
        usleep(20);
    }
    return argument;
}

int main(void)
{
    char line[LINE];
    for (int i = 0; i < LINE; i++)
        line[i] = i == LINE - 1 ? '\n' : 'x';
    int file = mkstemp(name);
    if (file < 0 || write(file, line, LINE) != LINE)
        return 1;
    pthread_t threads[READERS + 1];
    for (int i = 0; i < READERS; i++)
        pthread_create(&threads[i], NULL, read_lines, NULL);
    pthread_create(&threads[READERS], NULL, flush, NULL);
    int good = 0;
    for (int i = 0; i < FORKS; i++) {
        pid_t child = fork();
        if (child == 0) {
            // Its locks are free.
            FILE *own = fopen(name, "r");
            int same = read_line(own);
            fclose(own);
            fflush(NULL);
            _exit(same ? 7 : 8);
        }
        int status;
        good += waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7;
    }
    stop = 1;
    for (int i = 0; i <= READERS; i++)
        pthread_join(threads[i], NULL);
    unlink(name);
    printf("%d of %d children\n", good, FORKS);
    return good == FORKS ? 0 : 1;
}
