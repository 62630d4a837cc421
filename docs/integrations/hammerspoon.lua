-- Speak the selection of any app, and stop, by two hotkeys. Install: copy this to ~/.hammerspoon/miso.lua, write
-- `require("miso")` in ~/.hammerspoon/init.lua, and reload. Allow Hammerspoon under Privacy & Security > Accessibility.
-- Hammerspoon's PATH is short: what `which misoctl` prints goes here.
local misoctl = os.getenv("HOME") .. "/.local/bin/misoctl"
local speak_key, stop_key = { { "cmd", "alt" }, "s" }, { { "cmd", "alt" }, "." }

local speaking = nil -- ours, and the only one that is stopped

local function stop()
  if speaking and speaking:isRunning() then
    speaking:terminate()
  end
  speaking = nil
end

local function ended(code, _, said)
  if code ~= 0 and code ~= 143 and said ~= "" then -- 143: stopped
    hs.alert.show(said)
  end
end

local function selection()
  local element = hs.uielement.focusedElement()
  local text = element and element:selectedText()
  if text and text ~= "" then
    return text
  end
  local before, count = hs.pasteboard.readAllData(), hs.pasteboard.changeCount()
  hs.eventtap.keyStroke({ "cmd" }, "c") -- apps that tell nobody what is selected still copy it
  for _ = 1, 20 do
    hs.timer.usleep(20000)
    if hs.pasteboard.changeCount() ~= count then
      text = hs.pasteboard.getContents()
      hs.pasteboard.writeAllData(before)
      return text
    end
  end
end

local function speak()
  local text = selection()
  if not text or text == "" then
    hs.alert.show("Nothing is selected")
    return
  end
  stop()
  speaking = hs.task.new(misoctl, ended, { "say", "-q" })
  speaking:setInput(text) -- by standard input: quotes and newlines are only text
  speaking:start()
end

hs.hotkey.bind(speak_key[1], speak_key[2], speak)
hs.hotkey.bind(stop_key[1], stop_key[2], stop)
