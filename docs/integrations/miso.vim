" Speech in Vim (8 or newer, with +job) and Neovim. Install: copy it to ~/.vim/plugin/ or ~/.config/nvim/plugin/.
"
"   :Miso            speak the paragraph        :%Miso  the buffer        :'<,'>Miso  lines
"   <leader>s        in Visual mode: speak the selection, to the letter
"   :MisoStop        stop what this editor speaks
"
" Where misoctl is not on the editor's PATH:  let g:misoctl = '/home/me/miso/.venv/bin/misoctl'

if exists('g:loaded_miso') || !(has('nvim') || has('job'))
  finish
endif
let g:loaded_miso = 1

let s:job = v:null

function! s:Failed(code, said) abort
  if a:code != 0 && a:code != 143 " 143: stopped
    echohl WarningMsg | echomsg 'miso: exit ' . a:code . ' ' . join(a:said, ' ') | echohl None
  endif
endfunction

function! s:Speak(lines) abort
  call s:Stop()
  let l:command = [get(g:, 'misoctl', 'misoctl'), 'say', '-q']
  let l:said = []
  if has('nvim')
    let s:job = jobstart(l:command, {'on_stderr': {_j, data, _e -> extend(l:said, data)}, 'stderr_buffered': v:true,
          \ 'on_exit': {_j, code, _e -> s:Failed(code, l:said)}})
    call chansend(s:job, a:lines)
    call chanclose(s:job, 'stdin')
  else
    let s:job = job_start(l:command, {'err_cb': {_c, line -> add(l:said, line)}, 'stoponexit': 'term',
          \ 'exit_cb': {_j, code -> s:Failed(code, l:said)}})
    call ch_sendraw(s:job, join(a:lines, "\n"))
    call ch_close_in(s:job)
  endif
endfunction

function! s:Stop() abort
  if s:job isnot v:null
    call call(has('nvim') ? 'jobstop' : 'job_stop', [s:job])
    let s:job = v:null
  endif
endfunction

function! s:Selection() abort
  let l:kept = [getreg('z'), getregtype('z')]
  silent normal! gv"zy
  let l:text = getreg('z', 1, 1)
  call setreg('z', l:kept[0], l:kept[1])
  return l:text
endfunction

function! s:Paragraph() abort
  let l:after = search('^\s*$', 'nW')
  return getline(search('^\s*$', 'bnW') + 1, l:after ? l:after - 1 : line('$'))
endfunction

command! -range Miso call s:Speak(<range> ? getline(<line1>, <line2>) : s:Paragraph())
command! MisoStop call s:Stop()
xnoremap <silent> <leader>s :<C-u>call <SID>Speak(<SID>Selection())<CR>
