; x86-64-v3

define void @f(ptr noalias readonly captures(none) align 4 %A, ptr noalias readonly captures(none) align 4 %I, ptr noalias captures(none) align 4 %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.4 = udiv i64 %n, 16
  %.7 = icmp slt i64 0, %.4
  br i1 %.7, label %i_body.5, label %i_done.6
i_body.5:
  %i.8 = phi i64 [ 0, %first.1 ], [ %i_next.96, %i_body.5 ]
  %.9 = mul nsw i64 %i.8, 16
  %.10 = getelementptr i32, ptr %I, i64 %.9
  %.11 = load <8 x i32>, ptr %.10, align 4
  %.12 = getelementptr i32, ptr %.10, i64 8
  %.13 = load <8 x i32>, ptr %.12, align 4
  %.14 = extractelement <8 x i32> %.11, i64 0
  %.15 = sext i32 %.14 to i64
  %.16 = getelementptr float, ptr %A, i64 %.15
  %.17 = load float, ptr %.16, align 4
  %.18 = insertelement <8 x float> poison, float %.17, i64 0
  %.19 = extractelement <8 x i32> %.11, i64 1
  %.20 = sext i32 %.19 to i64
  %.21 = getelementptr float, ptr %A, i64 %.20
  %.22 = load float, ptr %.21, align 4
  %.23 = insertelement <8 x float> %.18, float %.22, i64 1
  %.24 = extractelement <8 x i32> %.11, i64 2
  %.25 = sext i32 %.24 to i64
  %.26 = getelementptr float, ptr %A, i64 %.25
  %.27 = load float, ptr %.26, align 4
  %.28 = insertelement <8 x float> %.23, float %.27, i64 2
  %.29 = extractelement <8 x i32> %.11, i64 3
  %.30 = sext i32 %.29 to i64
  %.31 = getelementptr float, ptr %A, i64 %.30
  %.32 = load float, ptr %.31, align 4
  %.33 = insertelement <8 x float> %.28, float %.32, i64 3
  %.34 = extractelement <8 x i32> %.11, i64 4
  %.35 = sext i32 %.34 to i64
  %.36 = getelementptr float, ptr %A, i64 %.35
  %.37 = load float, ptr %.36, align 4
  %.38 = insertelement <8 x float> %.33, float %.37, i64 4
  %.39 = extractelement <8 x i32> %.11, i64 5
  %.40 = sext i32 %.39 to i64
  %.41 = getelementptr float, ptr %A, i64 %.40
  %.42 = load float, ptr %.41, align 4
  %.43 = insertelement <8 x float> %.38, float %.42, i64 5
  %.44 = extractelement <8 x i32> %.11, i64 6
  %.45 = sext i32 %.44 to i64
  %.46 = getelementptr float, ptr %A, i64 %.45
  %.47 = load float, ptr %.46, align 4
  %.48 = insertelement <8 x float> %.43, float %.47, i64 6
  %.49 = extractelement <8 x i32> %.11, i64 7
  %.50 = sext i32 %.49 to i64
  %.51 = getelementptr float, ptr %A, i64 %.50
  %.52 = load float, ptr %.51, align 4
  %.53 = insertelement <8 x float> %.48, float %.52, i64 7
  %.54 = extractelement <8 x i32> %.13, i64 0
  %.55 = sext i32 %.54 to i64
  %.56 = getelementptr float, ptr %A, i64 %.55
  %.57 = load float, ptr %.56, align 4
  %.58 = insertelement <8 x float> poison, float %.57, i64 0
  %.59 = extractelement <8 x i32> %.13, i64 1
  %.60 = sext i32 %.59 to i64
  %.61 = getelementptr float, ptr %A, i64 %.60
  %.62 = load float, ptr %.61, align 4
  %.63 = insertelement <8 x float> %.58, float %.62, i64 1
  %.64 = extractelement <8 x i32> %.13, i64 2
  %.65 = sext i32 %.64 to i64
  %.66 = getelementptr float, ptr %A, i64 %.65
  %.67 = load float, ptr %.66, align 4
  %.68 = insertelement <8 x float> %.63, float %.67, i64 2
  %.69 = extractelement <8 x i32> %.13, i64 3
  %.70 = sext i32 %.69 to i64
  %.71 = getelementptr float, ptr %A, i64 %.70
  %.72 = load float, ptr %.71, align 4
  %.73 = insertelement <8 x float> %.68, float %.72, i64 3
  %.74 = extractelement <8 x i32> %.13, i64 4
  %.75 = sext i32 %.74 to i64
  %.76 = getelementptr float, ptr %A, i64 %.75
  %.77 = load float, ptr %.76, align 4
  %.78 = insertelement <8 x float> %.73, float %.77, i64 4
  %.79 = extractelement <8 x i32> %.13, i64 5
  %.80 = sext i32 %.79 to i64
  %.81 = getelementptr float, ptr %A, i64 %.80
  %.82 = load float, ptr %.81, align 4
  %.83 = insertelement <8 x float> %.78, float %.82, i64 5
  %.84 = extractelement <8 x i32> %.13, i64 6
  %.85 = sext i32 %.84 to i64
  %.86 = getelementptr float, ptr %A, i64 %.85
  %.87 = load float, ptr %.86, align 4
  %.88 = insertelement <8 x float> %.83, float %.87, i64 6
  %.89 = extractelement <8 x i32> %.13, i64 7
  %.90 = sext i32 %.89 to i64
  %.91 = getelementptr float, ptr %A, i64 %.90
  %.92 = load float, ptr %.91, align 4
  %.93 = insertelement <8 x float> %.88, float %.92, i64 7
  %.94 = getelementptr float, ptr %C, i64 %.9
  store <8 x float> %.53, ptr %.94, align 4
  %.95 = getelementptr float, ptr %.94, i64 8
  store <8 x float> %.93, ptr %.95, align 4
  %i_next.96 = add nuw nsw i64 %i.8, 1
  %.97 = icmp slt i64 %i_next.96, %.4
  br i1 %.97, label %i_body.5, label %i_done.6, !llvm.loop !0
i_done.6:
  br label %join.2
join.2:
  ret void
}


!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
; znver4

define void @f(ptr noalias readonly captures(none) align 4 %A, ptr noalias readonly captures(none) align 4 %I, ptr noalias captures(none) align 4 %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.4 = udiv i64 %n, 16
  %.7 = icmp slt i64 0, %.4
  br i1 %.7, label %i_body.5, label %i_done.6
i_body.5:
  %i.8 = phi i64 [ 0, %first.1 ], [ %i_next.16, %i_body.5 ]
  %.9 = mul nsw i64 %i.8, 16
  %.10 = getelementptr i32, ptr %I, i64 %.9
  %.11 = load <16 x i32>, ptr %.10, align 4
  %.12 = sext <16 x i32> %.11 to <16 x i64>
  %.13 = getelementptr float, ptr %A, <16 x i64> %.12
  %.14 = call <16 x float> @llvm.masked.gather.v16f32.v16p0(<16 x ptr> align 4 %.13, <16 x i1> splat (i1 true), <16 x float> zeroinitializer)
  %.15 = getelementptr float, ptr %C, i64 %.9
  store <16 x float> %.14, ptr %.15, align 4
  %i_next.16 = add nuw nsw i64 %i.8, 1
  %.17 = icmp slt i64 %i_next.16, %.4
  br i1 %.17, label %i_body.5, label %i_done.6, !llvm.loop !0
i_done.6:
  br label %join.2
join.2:
  ret void
}

declare <16 x float> @llvm.masked.gather.v16f32.v16p0(<16 x ptr>, <16 x i1>, <16 x float>)

!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
