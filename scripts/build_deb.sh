#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A Debian package of programs, service and module source, into dist/.
# The Python packages that Debian 12 lacks or has too old come along in /usr/lib/hmb-trace.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v dpkg-deb >/dev/null || { echo "missing: dpkg-deb (apt install dpkg)" >&2; exit 1; }

python=${PYTHON:-python3}
version=$("$python" -c 'import tomllib; print(tomllib.load(open("pyproject.toml", "rb"))["project"]["version"])')
minor=$("$python" -c 'import sys; print(sys.version_info.minor)')
arch=$(dpkg --print-architecture)
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"

.venv/bin/pip --disable-pip-version-check -q install --no-compile --target "$root/usr/lib/hmb-trace" '.[fleet]'
rm -rf "$root/usr/lib/hmb-trace/bin"
rm -f "$root"/usr/lib/hmb-trace/*.dist-info/{direct_url.json,RECORD}
install -d "$root/usr/bin"
program() { # program NAME MODULE
	cat >"$root/usr/bin/$1" <<-END
		#!/usr/bin/python3
		import sys
		sys.path.insert(0, "/usr/lib/hmb-trace")
		from $2 import main
		sys.exit(main())
	END
	chmod 755 "$root/usr/bin/$1"
}
program hmb-trace hmb_trace.cli
program hmb-trace-daemon hmb_daemon.entry
program hmb-firmware-sim hmb_producer_sim.cli

install -d "$root/usr/bin"
ln -s ../lib/hmb-trace/hmb_daemon/hmb-trace-collector "$root/usr/bin/hmb-trace-collector"
install -D -m 644 systemd/hmb-trace-daemon@.service systemd/hmb-trace-collector@.service -t "$root/lib/systemd/system"
install -D -m 644 systemd/99-hmb-trace.rules -t "$root/lib/udev/rules.d"
install -D -m 644 systemd/hmb-trace.sysusers.conf "$root/usr/lib/sysusers.d/hmb-trace.conf"
install -D -m 644 systemd/hmb-trace.tmpfiles.conf "$root/usr/lib/tmpfiles.d/hmb-trace.conf"
install -D -m 644 systemd/*.conf -t "$root/usr/share/doc/hmb-trace/systemd"
install -D -m 644 include/uapi/linux/hmb_trace.h -t "$root/usr/include/linux"
install -D -m 644 README.md CHANGELOG.md ARCHITECTURE.md docs/*.md -t "$root/usr/share/doc/hmb-trace"
make -s -C kmod_shim dkms-tree DEST="$root/usr/src/nvme-hmb-trace-$version"
.venv/bin/python scripts/build_docs.py --man "$root/usr/share/man"
find "$root/usr/share/man" -type f -exec gzip -9n {} +
{
	echo "Files: *"
	echo "License: Apache-2.0; kernel module: GPL-2.0; shared header: GPL-2.0 WITH Linux-syscall-note OR MIT"
	cat LICENSES/*.txt
} >"$root/usr/share/doc/hmb-trace/copyright"

install -d "$root/DEBIAN"
cat >"$root/DEBIAN/control" <<-END
	Package: hmb-trace
	Version: $version
	Architecture: $arch
	Maintainer: hmb-trace developers <hmb-trace@localhost>
	Installed-Size: $(du -sk "$root" | cut -f1)
	Depends: python3 (>= 3.$minor), python3 (<< 3.$((minor + 1))), libc6
	Recommends: systemd, dkms
	Section: utils
	Priority: optional
	Description: capture of SSD firmware traces from the NVMe Host Memory Buffer
	 A daemon that drains the trace ring of an SSD into dump files without ever
	 losing a record silently, the tools to look at them, a firmware simulator,
	 and the source of the kernel module.
END
cat >"$root/DEBIAN/postinst" <<-END
	#!/bin/sh
	set -e
	if [ "\$1" = configure ]; then
		python3 -m compileall -q /usr/lib/hmb-trace || true
		if [ -d /run/systemd/system ]; then
			systemd-sysusers hmb-trace.conf || true
			systemd-tmpfiles --create hmb-trace.conf || true
			systemctl daemon-reload || true
			udevadm control --reload || true
		fi
		if command -v dkms >/dev/null; then
			dkms add -m nvme-hmb-trace -v $version || true
			dkms autoinstall || true
		fi
	fi
END
cat >"$root/DEBIAN/prerm" <<-END
	#!/bin/sh
	set -e
	find /usr/lib/hmb-trace -name __pycache__ -type d -prune -exec rm -rf {} +
	if [ "\$1" = remove ] && command -v dkms >/dev/null; then
		dkms remove -m nvme-hmb-trace -v $version --all || true
	fi
END
chmod 755 "$root/DEBIAN/postinst" "$root/DEBIAN/prerm"
mkdir -p dist
dpkg-deb --root-owner-group -Zgzip --build "$root" "dist/hmb-trace_${version}_${arch}.deb" >/dev/null
echo "dist/hmb-trace_${version}_${arch}.deb"
