// Talks to a server by OpenAI's SDK and prints, as JSON, what the SDK made of the answers: node openai.mjs URL MODEL SCENE
import OpenAI from 'openai';
import { zodResponseFormat, zodTextFormat } from 'openai/helpers/zod';
import { z } from 'zod';

const [url, model, scene] = process.argv.slice(2);
const client = new OpenAI({ baseURL: url, apiKey: 'none', maxRetries: 0 });

const says = (content) => [{ role: 'user', content }];
const WEATHER = { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] };
const Picture = z.object({
  title: z.string().regex(/^[a-z]{1,8}$/),
  colours: z.array(z.boolean()).max(3),
  size: z.object({ width: z.int().min(1).max(9), height: z.int().min(1).max(9) }).nullable(),
});

async function all(stream) {
  const parts = [];
  for await (const part of stream) parts.push(part);
  return parts;
}

// Resolves to the name of the error that a promise ends in.
async function errorOf(promise) {
  return promise.then(() => null, (error) => ({ name: error.constructor.name, ...error, message: error.message }));
}

const scenes = {
  async chat() {
    const answer = await client.chat.completions.create({ model, messages: says('hello'), logprobs: true });
    const [{ message, finish_reason, logprobs }] = answer.choices;
    return { text: message.content, finish_reason, usage: answer.usage, scored: logprobs.content.length, request: answer._request_id };
  },

  async stream() {
    const options = { model, messages: says('hello'), stream: true, stream_options: { include_usage: true } };
    const chunks = await all(await client.chat.completions.create(options));
    const text = chunks.map((chunk) => chunk.choices[0]?.delta.content ?? '').join('');
    return { text, chunks: chunks.length, usage: chunks.at(-1).usage };
  },

  async greedy() {
    const options = { model, messages: says('hello'), temperature: 0, max_tokens: 24 };
    const whole = await client.chat.completions.create(options);
    const chunks = await all(await client.chat.completions.create({ ...options, stream: true }));
    return [whole.choices[0].message.content, chunks.map((chunk) => chunk.choices[0].delta.content ?? '').join('')];
  },

  async tools() {
    const tools = [{ type: 'function', function: { name: 'get_weather', parameters: WEATHER } }];
    const options = { model, messages: says('weather?'), tools };
    const whole = await client.chat.completions.create(options);
    const streamed = await client.chat.completions.stream(options).finalChatCompletion();
    return [whole, streamed].map(({ choices: [{ message, finish_reason }] }) => ({
      finish_reason,
      text: message.content,
      calls: message.tool_calls.map((call) => [call.function.name, call.function.arguments]),
    }));
  },

  async loop() {
    const asked = [];
    const weather = { name: 'get_weather', parameters: WEATHER, parse: JSON.parse, function: ({ city }) => { asked.push(city); return 'sunny'; } };
    const options = { model, messages: says('weather?'), tools: [{ type: 'function', function: weather }], stream: true };
    return { text: await client.chat.completions.runTools(options).finalContent(), asked };
  },

  async schema() {
    const options = { model, messages: says('hello'), seed: 3, response_format: zodResponseFormat(Picture, 'picture') };
    const whole = await client.chat.completions.parse(options);
    const streamed = await client.chat.completions.stream(options).finalChatCompletion();
    return [whole, streamed].map((answer) => answer.choices[0].message.parsed);
  },

  async responses() {
    const whole = await client.responses.create({ model, input: 'hello' });
    const events = await all(await client.responses.create({ model, input: 'hello', stream: true }));
    const deltas = events.filter((event) => event.type === 'response.output_text.delta').map((event) => event.delta);
    const kept = await client.responses.retrieve(whole.id);
    const ends = [events[0].type, events.at(-1).type];
    return { texts: [whole.output_text, deltas.join(''), kept.output_text], status: whole.status, ends };
  },

  async responses_tools() {
    const tools = [{ type: 'function', name: 'get_weather', parameters: WEATHER, strict: true }];
    const first = await client.responses.stream({ model, input: 'weather?', tools }).finalResponse();
    const call = first.output.find((item) => item.type === 'function_call');
    const result = { type: 'function_call_output', call_id: call.call_id, output: 'sunny' };
    const last = await client.responses.create({ model, input: [result], previous_response_id: first.id, tools });
    return { types: first.output.map((item) => item.type), call: [call.name, call.arguments], text: last.output_text };
  },

  async responses_schema() {
    const options = { model, input: 'hello', seed: 4, text: { format: zodTextFormat(Picture, 'picture') } };
    const whole = await client.responses.parse(options);
    const streamed = await client.responses.stream(options).finalResponse();
    return [whole, streamed].map((response) => response.output_parsed);
  },

  async completions() {
    const answer = await client.completions.create({ model, prompt: ['x', 'y'], max_tokens: 3 });
    const chunks = await all(await client.completions.create({ model, prompt: 'x', max_tokens: 3, stream: true }));
    return { texts: answer.choices.map((choice) => choice.text), streamed: chunks.map((chunk) => chunk.choices[0]?.text).join('') };
  },

  // It asks for base64 by itself.
  async embeddings() {
    const answer = await client.embeddings.create({ model, input: ['a', 'b'], dimensions: 2 });
    return answer.data.map((each) => each.embedding);
  },

  async models() {
    const listed = await all(client.models.list());
    return [...listed.map((each) => each.id), (await client.models.retrieve(model)).id];
  },

  async errors() {
    const missing = await errorOf(client.chat.completions.create({ model: 'other', messages: says('hello') }));
    const bad = await errorOf(client.chat.completions.create({ model, messages: says('hello'), max_tokens: -5 }));
    return [missing, bad].map(({ name, status, code, param }) => ({ name, status, code, param }));
  },

  async break() {
    for await (const chunk of await client.chat.completions.create({ model, messages: says('wait'), stream: true }))
      if (chunk.choices[0].delta.content) return chunk.choices[0].delta.content;
  },

  async responses_break() {
    for await (const event of await client.responses.create({ model, input: 'wait', stream: true }))
      if (event.type === 'response.output_text.delta') return event.delta;
  },

  // It leaves when its standard input ends.
  async abort() {
    const leaving = new AbortController();
    process.stdin.once('end', () => leaving.abort()).resume();
    const answer = client.chat.completions.create({ model, messages: says('wait') }, { signal: leaving.signal });
    return (await errorOf(answer)).name;
  },
};

console.log(JSON.stringify(await scenes[scene]()));
