// Resident memory of the process.
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

// In KiB; -1 if it is not known. Without the C library's streams, which allocate.
static long resident_kib(void)
{
    char text[128] = "";
    long size = 0, resident = 0;
    int file = open("/proc/self/statm", O_RDONLY);
    if (file < 0 || read(file, text, sizeof text - 1) <= 0)
        return -1;
    close(file);
    sscanf(text, "%ld %ld", &size, &resident);
    return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

// In MiB.
__attribute__((unused)) static long resident_mib(void)
{
    return resident_kib() / 1024;
}
