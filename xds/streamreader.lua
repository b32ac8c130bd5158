-- Reads a response of a model while it passes, and changes nothing. What it has read is dynamic
-- metadata, so it is in the access log; see streamReader in streamreader.go for the format. A
-- coroutine ends without a word when a response breaks off, so the reader writes what it has at
-- the first token, then each second, and at the end.

local find, sub, format = string.find, string.sub, string.format

-- The members of an event whose text is a part of the answer.
local TEXTS = {'"content":', '"text":', '"delta":', '"arguments":', '"reasoning_content":',
  '"reasoning":', '"refusal":', '"thinking":', '"partial_json":'}
local REASONS = {'"finish_reason":', '"stop_reason":'}
-- A gap of so many microseconds or less is of class 0. Each class is 2 % longer.
local SHORTEST, GROWTH = 10, math.log(1.02)
-- Bytes of a line that are kept until its end comes, and of one that are searched.
local LONGEST, SEARCHED = 65536, 8192
-- Bytes of JSON that are searched again with the next bytes.
local OVERLAP = 64

-- Plain searches come first in what follows, because they are much cheaper than patterns.

local function after(line, name, pattern)
  local _, to = find(line, name, 1, true)
  if to then return select(3, find(line, pattern, to + 1)) end
end

local function filled(line, name) return after(line, name, '^%s*"([^"])') end

-- The type of an event of the Responses API. vLLM writes this member last, behind members of other
-- objects with the same name.
local function response_event(line)
  return find(line, '"response.', 1, true) and select(3, find(line, '"type":%s*"response%.([%w_.]+)"'))
end

local function is_token(line)
  for i = 1, #TEXTS do
    if filled(line, TEXTS[i]) then return true end
  end
  return after(line, '"tool_calls":', '^%s*%[%s*({)') ~= nil
end

local function reason(text)
  for i = 1, #REASONS do
    local found = after(text, REASONS[i], '^%s*"([%w_]+)"')
    if found then return sub(found, 1, 32) end
  end
end

local function describe(r)
  local gaps = {}
  for class, n in pairs(r.gaps) do gaps[#gaps + 1] = class .. ":" .. n end
  return format("%d %d %.0f %.0f %d %s %s", r.tokens, r.bytes, r.first, r.last, r.ended,
    r.finish, table.concat(gaps, ","))
end

local function token(r, now)
  if r.tokens > 0 then
    local us = math.max(now - r.last, SHORTEST)
    local class = math.floor(math.log(us / SHORTEST) / GROWTH + 0.5)
    r.gaps[class] = (r.gaps[class] or 0) + 1
  else
    r.first = now
  end
  r.tokens, r.last = r.tokens + 1, now
end

local function end_response(r, event)
  if event == "completed" then
    r.ended, r.finish = 1, "stop"
  elseif event == "incomplete" then
    r.ended, r.finish = 1, "length"
  end
end

local function read_line(r, line, now)
  if sub(line, 1, 6) == "event:" then
    r.event = select(3, find(line, "^event:%s*response%.([%w_.]+)"))
    -- The data of this event has the whole answer, and may be too long.
    end_response(r, r.event)
    return
  end
  if sub(line, 1, 5) ~= "data:" then return end
  if #line > SEARCHED then line = sub(line, 1, SEARCHED) end
  local event = r.event or response_event(line)
  r.event = nil
  if event then
    end_response(r, event)
    if sub(event, -6) == ".delta" and filled(line, '"delta":') then
      token(r, now)
    end
    return
  end
  if find(line, "^data:%s*%[DONE%]") or find(line, '"message_stop"', 1, true) then
    r.ended = 1
  elseif is_token(line) then
    token(r, now)
  end
  r.finish = reason(line) or r.finish
end

local function read_events(r, text, now)
  text = r.rest .. text
  local from = 1
  while true do
    local to = find(text, "\n", from, true)
    if not to then break end
    read_line(r, sub(text, from, to - 1), now)
    from = to + 1
  end
  r.rest = sub(text, from)
  if #r.rest > LONGEST then r.rest = "" end
end

local function read_json(r, text)
  text = r.rest .. text
  r.finish = reason(text) or r.finish
  r.rest = sub(text, -OVERLAP)
end

function envoy_on_response(handle)
  local r = {tokens = 0, bytes = 0, first = 0, last = 0, ended = 0, finish = "-", gaps = {}, rest = ""}
  local is_stream = find(handle:headers():get("content-type") or "", "^text/event%-stream")
  local written = 0
  local function write(now)
    written = now
    handle:streamInfo():dynamicMetadata():set("sluice_stream", "read", describe(r))
  end
  for chunk in handle:bodyChunks() do
    local size = chunk:length()
    if size > 0 then
      local now = tonumber(handle:timestampString(EnvoyTimestampResolution.MICROSECOND))
      r.bytes = r.bytes + size
      if is_stream then
        read_events(r, chunk:getBytes(0, size), now)
      else
        read_json(r, chunk:getBytes(0, size))
      end
      if r.tokens > 0 and now - written >= 1000000 then write(now) end
    end
  end
  write(0)
end
