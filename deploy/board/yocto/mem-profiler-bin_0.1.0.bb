# Installs a package that deploy/build made: put mem-profiler-0.1.0-aarch64.tar.xz (or x86_64) into
# a directory "files" beside this recipe, and add to the image:
#   IMAGE_INSTALL:append = " mem-profiler-bin"
# As current releases have it. Before 5.1, write WORKDIR for UNPACKDIR and | for OR.
SUMMARY = "Sampling heap profiler for running programs: agent, controller, parser"
DESCRIPTION = "Prebuilt for any glibc from 2.17 on. The programs of an image are not rebuilt."
LICENSE = "Apache-2.0 OR MIT"
LIC_FILES_CHKSUM = "file://LICENSE-MIT;md5=3ea1feabe109b33384f718043b3157c2 \
                    file://LICENSE-APACHE;md5=288526dc6d1f1ba8ce2226ee433ca5c8"

SRC_URI = "file://mem-profiler-${PV}-${TARGET_ARCH}.tar.xz"
S = "${UNPACKDIR}/mem-profiler-${PV}-${TARGET_ARCH}"

COMPATIBLE_HOST = "(aarch64|x86_64).*-linux"
COMPATIBLE_HOST:libc-musl = "null"

do_configure[noexec] = "1"
do_compile[noexec] = "1"

do_install() {
    install -d ${D}${bindir} ${D}${libdir}/mem-profiler ${D}${datadir}/mem-profiler ${D}${mandir}/man1
    install -m 0755 ${S}/bin/mem_profiler ${S}/bin/mem_parser ${D}${bindir}/
    install -m 0755 ${S}/lib/libmem_agent.so ${D}${libdir}/mem-profiler/
    install -m 0755 ${S}/share/mem-profiler/setup.bash ${S}/share/mem-profiler/collect.bash \
        ${D}${datadir}/mem-profiler/
    install -m 0644 ${S}/share/man/man1/* ${D}${mandir}/man1/
}

# The scripts look beside their own prefix; the parser can stay on the workstation.
PACKAGES =+ "${PN}-parser"
FILES:${PN}-parser = "${bindir}/mem_parser"
FILES:${PN} += "${libdir}/mem-profiler ${datadir}/mem-profiler"
RRECOMMENDS:${PN} = "${PN}-parser"
# Stripped already, and a library that programs preload, not link.
INSANE_SKIP:${PN} += "already-stripped"
INSANE_SKIP:${PN}-parser += "already-stripped"
INHIBIT_PACKAGE_STRIP = "1"
INHIBIT_SYSROOT_STRIP = "1"
INHIBIT_PACKAGE_DEBUG_SPLIT = "1"
