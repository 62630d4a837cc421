#!/bin/sh
# Speak the clipboard; once more while it speaks: silence. Install: put it into a folder that Raycast knows
# (Settings > Extensions > Script Commands), `chmod +x` it; miso-speak beside it, with misoctl's whole path in it.
#
# @raycast.schemaVersion 1
# @raycast.title Speak Clipboard
# @raycast.mode silent
# @raycast.packageName miso
# @raycast.icon 🔊
# @raycast.description Speak the clipboard with miso; stop where it speaks already.

here=$(cd "$(dirname "$0")" && pwd)
kept=${XDG_CACHE_HOME:-$HOME/.cache}/miso-speak/raycast
if [ -e "$kept" ] && kill -0 "$(cat "$kept")" 2>/dev/null; then
    "$here/miso-speak" --stop raycast
    echo "Silence"
    exit
fi
export LC_ALL=en_US.UTF-8 # pbpaste writes in the locale's encoding, and Raycast sets none
if [ -z "$(pbpaste)" ]; then
    echo "The clipboard holds no text"
    exit 1
fi
(pbpaste | nohup "$here/miso-speak" raycast >/dev/null 2>&1 &)
echo "Speaking"
