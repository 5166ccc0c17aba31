################################################################################
#
# mem-profiler-bin
#
################################################################################

# A package that deploy/build made, beside this file: for an external tree, whose Config.in and
# external.mk name this directory.
MEM_PROFILER_BIN_VERSION = 0.1.0
MEM_PROFILER_BIN_SOURCE = mem-profiler-$(MEM_PROFILER_BIN_VERSION)-$(ARCH).tar.xz
MEM_PROFILER_BIN_SITE = $(patsubst %/,%,$(MEM_PROFILER_BIN_PKGDIR))
MEM_PROFILER_BIN_SITE_METHOD = file
MEM_PROFILER_BIN_LICENSE = MIT or Apache-2.0
MEM_PROFILER_BIN_LICENSE_FILES = LICENSE-MIT LICENSE-APACHE
# It comes from this machine.
BR_NO_CHECK_HASH_FOR += $(MEM_PROFILER_BIN_SOURCE)

ifeq ($(BR2_PACKAGE_MEM_PROFILER_BIN_PARSER),y)
define MEM_PROFILER_BIN_INSTALL_PARSER
	$(INSTALL) -D -m 0755 $(@D)/bin/mem_parser $(TARGET_DIR)/usr/bin/mem_parser
endef
endif

define MEM_PROFILER_BIN_INSTALL_TARGET_CMDS
	$(INSTALL) -D -m 0755 $(@D)/bin/mem_profiler $(TARGET_DIR)/usr/bin/mem_profiler
	$(INSTALL) -D -m 0755 $(@D)/lib/libmem_agent.so $(TARGET_DIR)/usr/lib/mem-profiler/libmem_agent.so
	mkdir -p $(TARGET_DIR)/usr/share/mem-profiler
	$(INSTALL) -m 0755 $(@D)/share/mem-profiler/setup.bash \
		$(@D)/share/mem-profiler/collect.bash $(TARGET_DIR)/usr/share/mem-profiler/
	$(MEM_PROFILER_BIN_INSTALL_PARSER)
endef

$(eval $(generic-package))
