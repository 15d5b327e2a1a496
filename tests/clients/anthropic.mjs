// The official Anthropic SDK: Messages whole and streamed, tools, a tool runner, structured output, counting, errors.
import Anthropic from "@anthropic-ai/sdk";
import { betaZodTool } from "@anthropic-ai/sdk/helpers/beta/zod";
import { zodOutputFormat } from "@anthropic-ai/sdk/helpers/zod";
import { z } from "zod";
import { capital, check, done, model, refused, url, weather } from "./check.mjs";

const client = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });
const base = { model, max_tokens: 100, temperature: 0 };
const ask = [{ role: "user", content: capital }];
const whole = await client.messages.create({ ...base, messages: ask, system: "Be brief." });
check(whole.content[0].text.includes("Paris") && whole.stop_reason === "end_turn", whole);
const stream = client.messages.stream({ ...base, messages: ask, system: "Be brief." });
let pieces = "";
stream.on("text", (text) => { pieces += text; });
const final = await stream.finalMessage();
check(pieces === whole.content[0].text && final.usage.output_tokens === whole.usage.output_tokens, final);
const tools = [{ name: "get_weather", description: "The weather of a city", input_schema: { type: "object", properties: { city: { type: "string", enum: ["Paris", "Rome"] } }, required: ["city"], additionalProperties: false } }];
const question = [{ role: "user", content: weather }];
const called = await client.messages.create({ ...base, messages: question, tools, tool_choice: { type: "any" } });
check(called.stop_reason === "tool_use" && called.content[0].input.city === "Paris", called);
const streamed = await client.messages.stream({ ...base, messages: question, tools, tool_choice: { type: "tool", name: "get_weather" } }).finalMessage();
check(streamed.content[0].type === "tool_use" && streamed.content[0].input.city === "Paris", streamed);
const after = await client.messages.create({ ...base, tools, tool_choice: { type: "none" }, messages: [...question, { role: "assistant", content: called.content },
    { role: "user", content: [{ type: "tool_result", tool_use_id: called.content[0].id, content: "31 degrees, sunny" }] }] });
check(/31|sunny/i.test(after.content[0].text), after);
const asked = [];
const run = await client.beta.messages.toolRunner({ ...base, max_iterations: 2, messages: question, tool_choice: { type: "auto", disable_parallel_tool_use: true }, tools: [betaZodTool({
    name: "get_weather", description: "The weather of a city", inputSchema: z.object({ city: z.enum(["Paris", "Rome"]) }), run: ({ city }) => { asked.push(city); return "31 degrees, sunny"; } })] });
check(asked[0] === "Paris" && run.usage.output_tokens > 0, ["a tool runner", asked, run]);
const City = z.object({ name: z.string(), country: z.string() });
const parsed = await client.messages.parse({ ...base, messages: [{ role: "user", content: "Paris, as JSON with name and country." }], output_config: { format: zodOutputFormat(City) } });
check(parsed.parsed_output.name.includes("Paris"), parsed);
check((await client.messages.countTokens({ model, messages: ask, system: "Be brief." })).input_tokens === whole.usage.input_tokens + whole.usage.cache_read_input_tokens, whole.usage);
await refused(() => client.messages.create({ ...base, messages: [] }), (e) => e instanceof Anthropic.BadRequestError && e.error.error.type === "invalid_request_error", "no messages");
await refused(() => client.messages.create({ ...base, messages: ask, model: "other" }), (e) => e instanceof Anthropic.NotFoundError, "another model");
await refused(() => client.messages.create({ ...base, messages: ask, temperature: 9 }), (e) => e instanceof Anthropic.BadRequestError, "temperature 9");
done();
