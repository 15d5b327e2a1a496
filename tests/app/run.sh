#!/usr/bin/env bash
# The web app: lint, unit tests, that app/dist is what the sources make, and journeys in a browser against a real server.
#   tests/app/run.sh lint | journeys [NAME…] | long [NAME…] | webkit | targets [ROUNDS]   targets: figures, for a quiet machine
set -euo pipefail
cd "$(dirname "$0")/../../app"

node -e 'const [a, b] = process.versions.node.split(".").map(Number); process.exit(a > 20 || (a === 20 && b >= 11) ? 0 : 1)' || {
    echo "skipped: Node.js 20.11 or later is wanted, $(node --version) is here"
    exit 77
}

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
webkit) exec node tests/journeys/webkit.js ;;
long) exec node tests/journeys/run.js --long "${@:2}" ;;
targets) exec node tests/journeys/targets.js "${@:2}" ;;
journeys) exec node tests/journeys/run.js "${@:2}" ;;
*) echo "usage: tests/app/run.sh lint | journeys [NAME…] | long [NAME…] | webkit | targets [ROUNDS]" >&2; exit 2 ;;
esac
