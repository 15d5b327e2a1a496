#!/usr/bin/env bash
# The web app: lint, unit tests, that app/dist is what the sources make, and journeys in a browser against a real server.
#   tests/app/run.sh lint | journeys [NAME…]
set -euo pipefail
cd "$(dirname "$0")/../../app"

# npm's packages, anew when the lock file has changed.
stamp=node_modules/.lock-of-apus
if ! cmp -s package-lock.json $stamp; then
    npm ci --no-audit --no-fund --ignore-scripts >/dev/null
    cp package-lock.json $stamp
fi

case "${1:-lint}" in
lint)
    npm run --silent lint
    npm run --silent unit >unit.log 2>&1 || { cat unit.log; exit 1; }
    rm -f unit.log
    npm run --silent check
    ;;
journeys) exec node tests/journeys/run.js "${@:2}" ;;
*) echo "usage: tests/app/run.sh lint | journeys [NAME…]" >&2; exit 2 ;;
esac
