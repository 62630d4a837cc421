;;; miso.el --- Speak the region, the paragraph or the buffer -*- lexical-binding: t; -*-

;; Install: put it on `load-path', and in the init file:
;;   (require 'miso)
;;   (global-set-key (kbd "C-c s") #'miso-speak)     ; the region, or the paragraph
;;   (global-set-key (kbd "C-c .") #'miso-stop)

;;; Code:

(require 'subr-x)

(defgroup miso nil "Speech by miso." :group 'multimedia)

(defcustom miso-program "misoctl"
  "The misoctl to run; its whole path where Emacs does not have it in `exec-path'."
  :type 'string)

(defvar miso--process nil "Ours, and the only one that is stopped.")

;;;###autoload
(defun miso-stop ()
  "Stop what Emacs speaks."
  (interactive)
  (when (process-live-p miso--process)
    (signal-process miso--process 'TERM)) ; not `delete-process': SIGKILL would leave misoctl no time to tidy up
  (setq miso--process nil))

(defun miso--ended (process _event)
  "Tell why PROCESS failed; 143 is a stop."
  (let ((said (with-current-buffer (process-buffer process) (string-trim (buffer-string)))))
    (unless (process-live-p process)
      (unless (memq (process-exit-status process) '(0 15 143))
        (message "miso: %s" said))
      (kill-buffer (process-buffer process)))))

(defun miso-speak-text (text)
  "Speak TEXT, in place of what Emacs speaks."
  (miso-stop)
  (let ((process-connection-type nil) ; a pipe: a terminal would cut long lines
        (buffer (generate-new-buffer " *miso*")))
    (setq miso--process
          (make-process :name "miso" :buffer buffer :command (list miso-program "say" "-q")
                        :coding 'utf-8-unix :noquery t :sentinel #'miso--ended))
    (process-send-string miso--process text)
    (process-send-eof miso--process)))

;;;###autoload
(defun miso-speak ()
  "Speak the region where there is one, else the paragraph at point."
  (interactive)
  (miso-speak-text (if (use-region-p)
                       (buffer-substring-no-properties (region-beginning) (region-end))
                     (string-trim (or (thing-at-point 'paragraph t) (user-error "No paragraph here"))))))

;;;###autoload
(defun miso-speak-buffer ()
  "Speak the buffer."
  (interactive)
  (miso-speak-text (buffer-substring-no-properties (point-min) (point-max))))

(provide 'miso)
;;; miso.el ends here
