// What the scripts for Node share: the server's address, questions, and a count of what holds. node CLIENT.mjs URL MODEL
export const [url, model] = process.argv.slice(2);
export const capital = "What is the capital of France? One word.";
export const weather = "What is the weather in Paris?";
let passed = 0, failed = 0;

export function check(ok, what) {
    if (ok) return void passed++;
    failed++;
    console.log("FAILED:", typeof what === "string" ? what : JSON.stringify(what));
}

// The call must fail, and its error must pass the test.
export async function refused(call, test, what) {
    try {
        await call();
        check(false, `${what} was accepted`);
    } catch (error) {
        check(test(error), `${what}: ${error} ${JSON.stringify(error)}`);
    }
}

export function done() {
    console.log(`${passed} passed, ${failed} failed`);
    process.exit(failed || !passed ? 1 : 0);
}
