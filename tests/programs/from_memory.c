// Copies the program that the arguments name into memory, and executes that copy with the remaining
// arguments.

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

extern char **environ;

int main(int count, char **arguments) {
    int copy = memfd_create("copied", 0);
    int file = open(arguments[1], O_RDONLY);
    struct stat about;
    if (count < 2 || copy < 0 || file < 0 || fstat(file, &about) != 0) return 2;
    for (off_t done = 0; done < about.st_size;) {
        if (sendfile(copy, file, &done, about.st_size - done) <= 0) return 3;
    }
    fexecve(copy, arguments + 1, environ);
    perror("fexecve");
    return 4;
}
