// Preloaded, it hides `_dl_find_object` (glibc 2.35), as on a system with an older C
// library: linked with --defsym, its symbol of this name has the address 0.
