# Sourced by scripts that work on a copy of the tree, so that the tree may change meanwhile.

copy_tree() {
    mkdir "$1"
    git ls-files --cached --others --exclude-standard -z |
        while IFS= read -r -d '' file; do [ -e "$file" ] && printf '%s\0' "$file"; done |
        xargs -0 cp --parents --target-directory "$1"
}
