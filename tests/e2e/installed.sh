#!/usr/bin/env bash
# installed.sh SOURCE BUILD COMPILER: installs a build into an empty folder, builds examples/minimal.cpp against it by
# find_package and by pkg-config, makes the Debian package, installs it into a root of its own and runs what is in it.
set -euo pipefail
source=$1 build=$2 compiler=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
expect() { # WHAT FILE: the file has a line with WHAT
  grep -q -- "$1" "$2" || { echo "no \"$1\" in:"; cat "$2"; exit 1; }
}

cmake --install "$build" --prefix "$work/prefix" > "$work/log" || { tail -n 40 "$work/log"; exit 1; }
config=$source/ds_config_samples/zero3.json

mkdir "$work/user"
cat > "$work/user/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.25)
project(user CXX)
find_package(zero 0.1 CONFIG REQUIRED)
add_executable(minimal $source/examples/minimal.cpp)
target_link_libraries(minimal PRIVATE zero::zero)
END
cmake -S "$work/user" -B "$work/user/build" -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_CXX_COMPILER="$compiler" > "$work/log" 2>&1 && cmake --build "$work/user/build" > "$work/log" 2>&1 ||
  { tail -n 40 "$work/log"; exit 1; }
"$work/user/build/minimal" "$config" > "$work/out"
expect '^loss=' "$work/out"

if command -v pkg-config > /dev/null; then
  libdir=$(dirname "$(find "$work/prefix" -name zero.pc)")
  read -ra flags <<< "$(PKG_CONFIG_PATH=$libdir pkg-config --define-variable=prefix="$work/prefix" --cflags --libs zero)"
  "$compiler" -O2 "$source/examples/minimal.cpp" -o "$work/by_pkg_config" "${flags[@]}"
  "$work/by_pkg_config" "$config" > "$work/out"
  expect '^loss=' "$work/out"
fi

(cd "$work" && cpack -G DEB --config "$build/CPackConfig.cmake" -B "$work/deb" > "$work/log" 2>&1) ||
  { tail -n 40 "$work/log"; exit 1; }
package=$(find "$work/deb" -maxdepth 1 -name '*.deb')
dpkg-deb --field "$package" Depends > "$work/out"
expect 'libc6' "$work/out"
root=$work/root
mkdir -p "$root/var/lib/dpkg/updates" "$root/var/lib/dpkg/info" "$root/tmp"
touch "$root/var/lib/dpkg/status" "$root/var/lib/dpkg/available"
dpkg --root="$root" --log=/dev/null --force-not-root --force-depends --install "$package" > "$work/log" 2>&1 ||
  { tail -n 40 "$work/log"; exit 1; }
for program in zero train_lm; do
  # Its libraries come from packages that Depends names; here they are copied.
  ldd "$root/usr/bin/$program" | grep -o '/[^ ]*' | while read -r library; do
    mkdir -p "$root$(dirname "$library")"
    cp -L "$library" "$root$library"
  done
done
cp "$config" "$root/tmp/ds_config.json"
printf 'abcdefgh%.0s' {1..4000} > "$root/tmp/text"
run=(chroot "$root")
folder=/tmp
if [ "$(id -u)" -ne 0 ]; then # no chroot: the files are the same, the libraries the system's
  run=()
  folder=$root/tmp
  PATH=$root/usr/bin:$PATH
fi
"${run[@]}" zero validate "$folder/ds_config.json" > "$work/out"
expect 'accept' "$work/out"
"${run[@]}" train_lm --config "$folder/ds_config.json" --data "$folder/text" --model byte-3m --steps 1 --ranks 2 \
  --micro-batch 1 --accumulation 1 > "$work/out" 2> "$work/log" || { tail -n 40 "$work/log"; exit 1; }
