#!/usr/bin/env bash
# site.sh pack OUT: packs SGLang 0.5.16 and what it and Trimtab's controller need, for a GPU machine without a package
# registry. That has Python 3.12, torch 2.11 (CUDA 13), triton, nvcc, numpy, scikit-learn, and what those need.
# site.sh unpack SITE PART...: there, takes in parts, in one call or in several; says what is still missing.
#
# Parts stay under PART_MIB (default 56) so that they can travel one by one: OUT/1/part, OUT/2/part ... and OUT/parts,
# which lists them with their checksums. The last ones are the FlashAttention-3 kernels, for --backend fa3 alone.
# Then: PYTHONPATH=SITE python3 tests/gpu/bench.py ...
set -euo pipefail
# Unpacking on one core takes most of a minute.
export XZ_DEFAULTS=-T0
here=$(cd "$(dirname "$0")" && pwd)
usage() { sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2; }

get() {
    local platforms=() glibc
    for glibc in 39 35 34 31 28 27 26 24 17 12 5; do platforms+=(--platform "manylinux_2_${glibc}_x86_64"); done
    "${PYTHON:-python3}" -m pip download --quiet --no-deps --only-binary=:all: --implementation cp --python-version 3.12 \
        "${platforms[@]}" --platform manylinux2014_x86_64 --platform manylinux1_x86_64 --dest "$1" --requirement "$2"
}

# Numbered folders, since a folder is what is easily carried.
split_into() {
    local out=$1 kind=$2 piece
    split -b "${PART_MIB:-56}M" -d - "$out/$kind."
    for piece in "$out/$kind".[0-9][0-9]; do
        count=$((count + 1))
        mkdir -p "$out/$count"
        mv "$piece" "$out/$count/part"
        (cd "$out" && echo "$kind $(sha256sum "$count/part")") >>"$out/parts"
    done
}

pack() {
    local out wheel
    mkdir -p "$1"
    out=$(cd "$1" && pwd)
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    get "$work/wheels" "$here/site_wheels.txt"
    mkdir "$work/site"
    for wheel in "$work"/wheels/*.whl; do
        case $wheel in
            *sglang_kernel*)
                # Kernels of other generations, and those that come in parts of their own.
                unzip -qo "$wheel" -d "$work/site" -x 'sgl_kernel/flash_ops*' 'sgl_kernel/infllm_ops*' \
                    'sgl_kernel/sm100/*' 'sgl_kernel/flashmla_ops*'
                unzip -qo "$wheel" 'sgl_kernel/flash_ops.abi3.so' -d "$work/fa3"
                ;;
            *) unzip -qo "$wheel" -d "$work/site" ;;
        esac
    done
    rm -rf "$work/site/sglang/multimodal_gen"
    cp "$here/stand_ins.py" "$work/site/sitecustomize.py"
    rm -f "$out/parts"
    count=0
    tar -C "$work/site" -cf - . | xz -T0 -6 | split_into "$out" site
    count=$(wc -l <"$out/parts")
    xz -T0 -1 -c "$work/fa3/sgl_kernel/flash_ops.abi3.so" | split_into "$out" fa3
    du -sh "$out"/[0-9]*
}

unpack() {
    local site=$1 part kind sum name missing=0 unpacked=1
    shift
    mkdir -p "$site/parts"
    for part in "$@"; do cp "$part" "$site/parts/$(sha256sum "$part" | cut -d' ' -f1)"; done
    for kind in site fa3; do
        [ -e "$site/.$kind" ] && continue
        missing=0
        while read -r of sum name; do
            [ "$of" = "$kind" ] || continue
            [ -e "$site/parts/$sum" ] || { echo "$kind: $name is missing"; missing=1; }
        done <"$LIST"
        [ "$missing" = 0 ] || { unpacked=0; continue; }
        case $kind in
            site) in_order "$site" site | tar -xJ -C "$site" ;;
            fa3) mkdir -p "$site/sgl_kernel"; in_order "$site" fa3 | xz -d >"$site/sgl_kernel/flash_ops.abi3.so" ;;
        esac
        touch "$site/.$kind"
        echo "$kind is there"
    done
    [ "$unpacked" = 1 ]
}

in_order() {
    local of sum name
    while read -r of sum name; do
        if [ "$of" = "$2" ]; then cat "$1/parts/$sum"; fi
    done <"$LIST"
}

[ $# -ge 2 ] || usage
case $1 in
    pack) pack "$2" ;;
    unpack)
        site=$2
        shift 2
        # The list travels with every part, in the folder above.
        LIST=${PARTS_LIST:-$(dirname "$(dirname "${1:-.}")")/parts}
        [ -e "$LIST" ] || { echo "site.sh: there is no list of parts at $LIST; name it: PARTS_LIST=FILE" >&2; exit 2; }
        unpack "$site" "$@"
        ;;
    *) usage ;;
esac
