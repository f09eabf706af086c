#compdef kartosql
_kartosql() {
    local line about
    local -a found
    while IFS=$'\t' read -r line about; do
        case "$line" in
            :files) _files ;;
            :folders) _files -/ ;;
            *) found+=("${line//:/\\:}:${about}") ;;
        esac
    done < <("${words[1]}" --complete "${(@)words[2,CURRENT]}" 2>/dev/null)
    (( ${#found} )) && _describe kartosql found
}
compdef _kartosql kartosql
