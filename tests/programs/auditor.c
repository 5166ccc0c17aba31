// A library that audits the loader (LD_AUDIT). With AUDITOR_WAITS, it says "audits" and waits for a
// line before the loader goes on.
#include <link.h>
#include <stdlib.h>
#include <unistd.h>

unsigned la_version(unsigned version) {
    char byte = 0;
    if (getenv("AUDITOR_WAITS")) {
        write(1, "audits\n", 7);
        while (read(0, &byte, 1) == 1 && byte != '\n')
            ;
    }
    return version;
}
