// A library that audits the loader, and does nothing else (LD_AUDIT).
#include <link.h>

unsigned la_version(unsigned version) { return version; }
